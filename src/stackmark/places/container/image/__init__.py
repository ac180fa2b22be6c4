"""Worker images: the recipe, its build context, the image, and where it is pushed to."""
