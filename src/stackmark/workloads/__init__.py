"""What is measured. `catalog` and every `params` module import no framework: the command line reads them."""
