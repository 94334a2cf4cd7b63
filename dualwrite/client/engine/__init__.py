"""The native producer without its sockets: verbs and events in, commands out."""
