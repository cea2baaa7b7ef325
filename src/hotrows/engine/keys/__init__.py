"""Key tables: which keys of dynamic ids are live, which rows they have, and how both change by batch."""
