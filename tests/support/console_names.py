"""Words of the console that are no messages."""

NAMES = {
    "CSV", "JSON", "JSONL", "UTC", "Python", "JavaScript", "Go", "curl",
    "s",  # the unit, a second
    "YOUR_KEY", "MODEL",  # in snippets
    "PostgreSQL", "Valkey", "Redis",
    "Node.js", "Open WebUI", "LibreChat", "Cherry Studio", "Chatbox", "Continue", "Cline", "Zed", "Claude Code",
    "Google Gen AI", "LangChain", "LlamaIndex", "Vercel AI SDK", "Codex", "Gemini CLI", "opencode", "aider", "Cursor",
    "n8n",
    "OpenAI API Key", "Override OpenAI Base URL", "Base URL",
    "OpenAI Compatible", "API Provider", "API Key", "URL", "API Address (API Host)", "API Host", "API Path", "Model ID",
}  # fmt: skip
"""Names: of formats and products, and of the settings of other apps as those show them in English."""
