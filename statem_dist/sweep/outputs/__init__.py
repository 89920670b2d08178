"""What is made of a sweep for readers and other tools: JSON, JSONL, CSV, JUnit XML, a page of HTML, a Markdown summary.

Every format is a pure function from a sweep, its trials and their scores to text; ``write_whole`` puts it into a file.
Names and outputs are somebody else's text: each format escapes them in its own way, and a test tries to break out.
"""
