"""The parts of a write, without I/O and without Spark: options, schemas, columns, rows, JSON and lines of COPY."""
