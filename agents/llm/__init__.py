"""The four agents played by language models, behind the same interface as the playbook's."""
