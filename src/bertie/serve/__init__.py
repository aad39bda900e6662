"""Model directories behind HTTP, and a page to try them on."""
