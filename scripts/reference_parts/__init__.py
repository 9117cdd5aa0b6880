"""The generated pages of the documentation: settings, commands, API and errors."""
