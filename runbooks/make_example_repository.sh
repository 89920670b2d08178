#!/bin/sh
# Make the repository that ci.sweep.yaml tests: a small Python package with a history of six commits, one tag each.
#
#   sh runbooks/make_example_repository.sh [FOLDER]      default: example-repository beside this script
#
# Dates, author and configuration are fixed, so that the commits have the same ids wherever it is made. It is a script
# and not a bundle because what it makes can be read, and reviewed, in plain text. If FOLDER is there, nothing is done.
set -eu

folder=${1:-"$(dirname "$0")/example-repository"}
if [ -d "$folder/.git" ]; then
    exit 0
fi
# Made aside and moved: whoever is interrupted leaves no half of a repository behind.
making="$folder.making.$$"
trap 'rm -rf "$making"' EXIT
mkdir -p "$making"
cd "$making"

# Nothing of the caller's git has a say: hooks, signatures, line ends, templates.
for name in $(env | sed -n 's/^\(GIT_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME="Ada Example" GIT_AUTHOR_EMAIL=ada@example.org
export GIT_COMMITTER_NAME="Ada Example" GIT_COMMITTER_EMAIL=ada@example.org
git init --quiet --template= --object-format=sha1
git symbolic-ref HEAD refs/heads/main

# Commit everything there is. $1: version, which is also the hour of the commit and names its tag; $2: message.
release() {
    echo "__version__ = \"1.$1\"" > tally/__init__.py
    export GIT_AUTHOR_DATE="2026-01-05T1$1:00:00+00:00" GIT_COMMITTER_DATE="2026-01-05T1$1:00:00+00:00"
    git add --all
    git commit --quiet --message "$2"
    git tag "v1.$1"
}

mkdir tally tests
printf '%s\n' "__pycache__/" "*.log" "/dist/" > .gitignore
: > tests/__init__.py
cat > tally/words.py <<'PYTHON'
"""Counting words."""

import re

WORD = re.compile(r"\w+")


def tally(text):
    """Return how often each word of a text occurs, whatever its case."""
    counts = {}
    for word in WORD.findall(text.lower()):
        counts[word] = counts.get(word, 0) + 1
    return counts
PYTHON
cat > tally/command.py <<'PYTHON'
"""The command line: words of the standard input, the most frequent first."""

import sys

from tally import __version__
from tally.words import tally


def main():
    if "--version" in sys.argv:
        print(__version__)
        return
    for word, count in sorted(tally(sys.stdin.read()).items(), key=lambda item: (-item[1], item[0])):
        print(count, word)
PYTHON
cat > tests/test_words.py <<'PYTHON'
import unittest

from tally import words


class Tally(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(words.tally("To be, or not to be"), {"to": 2, "be": 2, "or": 1, "not": 1})

    def test_nothing(self):
        self.assertEqual(words.tally(""), {})
PYTHON
release 0 "Count the words of a text"

# "\w" in a plain string is no escape sequence that Python knows: a warning of the compiler.
sed 's/r"\\w+"/"[\\w'"'"']+"/' tally/words.py > changed && mv changed tally/words.py
sed 's/Counting words\./Counting words, with apostrophes in them./' tally/words.py > changed && mv changed tally/words.py
release 1 "Words may have apostrophes in them"

# The set is filled by what `python -O` leaves out.
cat > tally/words.py <<'PYTHON'
"""Counting words, with apostrophes in them, and leaving some out."""

import re

WORD = re.compile(r"[\w']+")


def tally(text, ignored=()):
    """Return how often each word of a text occurs, whatever its case."""
    left_out = set()
    assert left_out.update(word.lower() for word in ignored) is None
    counts = {}
    for word in WORD.findall(text.lower()):
        if word not in left_out:
            counts[word] = counts.get(word, 0) + 1
    return counts
PYTHON
cat >> tests/test_words.py <<'PYTHON'

    def test_ignored(self):
        self.assertEqual(words.tally("The cat and the dog", ["The", "and"]), {"cat": 1, "dog": 1})
PYTHON
release 2 "Some words can be left out"

# What is deprecated is still called by the package itself.
cat > tally/words.py <<'PYTHON'
"""Counting words, with apostrophes in them, and leaving some out."""

import re
import warnings

WORD = re.compile(r"[\w']+")


def split(text):
    """Return the words of a text. Deprecated: use words()."""
    warnings.warn("split() is deprecated, use words()", DeprecationWarning, stacklevel=2)
    return words(text)


def words(text):
    """Return the words of a text, in lower case."""
    return WORD.findall(text.lower())


def tally(text, ignored=()):
    """Return how often each word of a text occurs, whatever its case."""
    left_out = set(words(" ".join(ignored)))
    counts = {}
    for word in split(text):
        if word not in left_out:
            counts[word] = counts.get(word, 0) + 1
    return counts
PYTHON
release 3 "Words can be had without counting them"

# The command's function has another name, which is noticed by nothing but the archive that is to start it.
sed 's/in split(text)/in words(text)/' tally/words.py > changed && mv changed tally/words.py
sed 's/def main/def run/' tally/command.py > changed && mv changed tally/command.py
release 4 "Nothing that is deprecated is called"

sed 's/def run/def main/' tally/command.py > changed && mv changed tally/command.py
release 5 "The command has its name again"

cd - > /dev/null
mv "$making" "$folder"
