"""The paper's experiments on the public API: data, networks, protocol, records, tables; the demo is a preset."""
