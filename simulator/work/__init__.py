"""What a model makes a rank do: floating-point work and bytes read, from its config alone."""
