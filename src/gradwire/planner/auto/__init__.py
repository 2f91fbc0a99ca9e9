"""`auto`: from what was measured to a codec for each layer, or to none. Pure decisions."""
