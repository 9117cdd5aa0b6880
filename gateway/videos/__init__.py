"""Video jobs: submitting, tracking, content, webhooks."""
