"""Reports of jobs and experiments: text, figures, spreadsheets."""
