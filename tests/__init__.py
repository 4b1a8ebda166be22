"""The suite; `lib` is what its tests share, `reference` the wire protocol once more, in plain Python."""
