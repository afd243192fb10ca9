"""Fifty things to ask a language model: short and long, code, languages, several turns. Nobody answers here."""

from __future__ import annotations

from pathlib import Path

Turns = tuple[str, ...]
"""What user and assistant said in turn; the user speaks first and last."""

_ROOT = Path(__file__).parents[1]

_SHORT = (
    "What is the capital of France?",
    "Write a short poem about rain.",
    "Explain photosynthesis in one sentence.",
    "List three fruits.",
    "What is 17 times 3?",
    "Tell me a joke about a cat and a dog.",
    "Hi",
    "Why is the sky blue?",
    "Who wrote Hamlet, and when?",
    "Give me a recipe for pancakes in five steps.",
    "What should I pack for a week in the mountains?",
    "Name the planets of the solar system in order.",
    "Summarize the plot of Romeo and Juliet in two sentences.",
    "How does a bicycle stay upright?",
    "Write a polite email that declines an invitation.",
    "Is 91 a prime number? Answer yes or no, then explain.",
    "yes or no: is water wet?",
    "Write a haiku.",
    "What rhymes with 'orange'?",
    "Continue: 2, 4, 8, 16,",
)
_CODE = (
    "Write a Python function that reverses a string.",
    "What does this print?\n```python\nfor i in range(3):\n    print(i * i)\n```",
    "Write a SQL query that counts the orders of each customer.",
    "Explain `git rebase` to a beginner.",
    'Turn this into JSON: name is Ada, age is 36, languages are "English" and "French".',
    "Write a regular expression for a date such as 2024-05-01.",
    "Fix this C code: int main() { printf('hello') }",
    "Write HTML for a table with two rows.",
)
_LANGUAGES = (
    "Translate to German: good morning, my friend.",
    "Wie spät ist es in Tokio, wenn es in Berlin Mittag ist?",
    "Écris une phrase sur la mer.",
    "¿Cuál es la capital de España?",
    "Qual è il fiume più lungo d'Italia?",
    "Назови три города России.",
    "日本の首都はどこですか。",
    "用一句话介绍长城。",
    "안녕하세요! 오늘 날씨가 어때요?",
    "Repeat exactly: 😀🎉 naïve café — “quoted” … ½",
)
_SEVERAL = (
    ("My name is Tom.", "Nice to meet you, Tom!", "What is my name?"),
    ("Give me a number.", "7", "And another?", "12", "What is their sum?"),
    ("Tell me a story.", "Once upon a time there was a fox.", "What happened then?"),
    ("Translate 'cat' to French.", "chat", "And 'dog'?", "chien", "And 'bird'?"),
    ("What is a list in Python?", "A list holds items in order.", "Show me one."),
    ("I like tea.", "Tea is lovely.", "Which kind should I try?", "Try green tea.", "Why that one?"),
)


def conversations() -> list[Turns]:
    """All fifty, always the same."""
    licence, program = (_ROOT / "LICENSE").read_text("utf-8"), Path(__file__).read_text("utf-8")
    long = (
        f"Summarize this text.\n\n{licence}",
        f"What does this program do?\n\n{program[:3000]}",
        "Why is the sky blue? " * 60,
        "Count on: " + " ".join(str(number) for number in range(1, 300)),
        "Which word stands here most often? " + "apple pear plum apple cherry " * 80,
        f"Who holds the rights, and what must be kept?\n\n{licence * 3}",
    )
    found = [(text,) for text in (*_SHORT, *_CODE, *_LANGUAGES, *long)] + list(_SEVERAL)
    assert len(found) == 50
    return found
