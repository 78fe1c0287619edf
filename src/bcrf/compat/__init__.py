"""Code that depends on the version of torch: private APIs, control flow in graphs, padding."""
