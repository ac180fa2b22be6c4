"""Worker images: the recipe, its build context, the image, and its push target."""
