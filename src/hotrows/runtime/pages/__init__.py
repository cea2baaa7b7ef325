"""Pages and pictures: HTML and SVG as text, without a library and without a file."""
