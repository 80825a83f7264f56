"""The text never depends on the speed: the same requests in every way the engine has, compared bit by bit."""
