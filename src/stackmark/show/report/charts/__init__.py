"""Pictures as SVG, written by hand: a scale, some shapes, some text. What is drawn stands in a table of the report too."""
