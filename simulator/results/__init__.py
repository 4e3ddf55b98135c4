"""What a run showed: samples, figures, tables, pictures."""
