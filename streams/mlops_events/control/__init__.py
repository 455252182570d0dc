"""The commands of the operator: up, stream, sink, tail, topics, config."""

__all__: list[str] = []
