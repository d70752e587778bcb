"""The `.pg` language: types of nodes and edges, their properties and constraints."""
