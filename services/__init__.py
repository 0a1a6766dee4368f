"""The four services of the mesh. They never import each other: they speak protos."""
