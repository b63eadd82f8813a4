"""Every family of Hugging Face ``transformers``: is the captured graph the module?"""
