"""Ways of holding weights around the steps of an optimizer: at zero, in the dark, at shared or rounded values."""
