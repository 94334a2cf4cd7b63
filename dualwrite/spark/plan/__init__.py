"""What is written, without I/O and without Spark: options, schemas, columns, rows, JSON and COPY's lines."""
