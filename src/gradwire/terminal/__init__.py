"""What a command says, where its results go, and how Ctrl-C ends it."""
