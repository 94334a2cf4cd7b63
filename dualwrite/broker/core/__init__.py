"""The broker's rules, pure. ``decide`` turns a command into facts, a reply and effects. ``apply`` applies facts."""
