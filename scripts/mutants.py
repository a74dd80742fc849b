"""mutants: the mutation operators. Finds every mutant of a C++ file in its text."""
import re

SWAPS = dict(pair.split(":") for pair in (
    "<:<= <=:< >:>= >=:> ==:!= !=:== &&:|| ||:&& +:- -:+ *:/ /:* %:* +=:-= -=:+= *=:/= |=:&= &=:|= "
    "<<:>> >>:<< &:| |:& ^:&").split())
NUMBER = re.compile(r"(?<![\w.'])(\d+)(\.\d+)?(?=[uUlLfF]*\b)(?![\w.']*[xXpPeE'])")
# String types, which have no minus.
JOINS = re.compile(r'"\s+\+\s|\s\+\s+"|\s\+\s+std::(?:to_)?string|\.str\(\)\s+\+')
STATEMENT = re.compile(r"(?:break|continue|\+\+[\w.\->\[\]]+|"
                       r"[\w.:\->\[\]*()]+ (?:[-+*/|&^]|<<|>>)?= .*|"
                       r"(?:std::)?[\w.:\->\[\]]+\(.*\))", re.S)
SWAPPED = re.compile(r"(?<![\w>] )\b(?!min\b|max\b)\w+\((\w+), (\w+)\)")
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|'
                  r"^#[^\n]*|\bstatic_assert\([^;]*;|\btemplate <[^>]*>|"
                  r"^ +(?:scheme)?\.traffic = [^\n]*|"  # a number for the benchmarks' table
                  r"^ +[\w.]+\.reserve\([^;]*;|"  # memory that would be there a little later
                  # What does nothing without a GPU: launches, and the order of streams.
                  r"^ +\w+_cuda\([^;]*;|"
                  r"^ +[\w.]+\.(?:record|hold_back)\([^;]*;|^ +stream_?\.wait\(\);",
                  re.S | re.M)


class Mutant:
    """One change of one file."""

    def __init__(self, path, text, start, end, new, kind):
        self.path, self.start, self.end, self.new, self.kind = path, start, end, new, kind
        self.line = text.count("\n", 0, start) + 1
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        self.before = " ".join(text[first:last].split())
        self.after = " ".join((text[first:start] + new + text[end:last]).split())

    def key(self):
        return (self.path, self.before, self.after)

    def describe(self):
        return f"{self.path}:{self.line}: {self.kind}\n    - {self.before}\n    + {self.after}"


def closing(code, opening):
    depth = 0
    for at in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return -1


def mutants_of(root, path):
    """Every mutant of a file, found in its text. The sources are formatted, so spaces
    identify operators."""
    text = (root / path).read_text()
    # Everything that is not code becomes blanks, so that positions stay.
    code = TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    flat = code.replace("\n", " ")
    found = []

    def add(start, end, new, kind):
        found.append(Mutant(path, text, start, end, new, kind))

    for operator in re.finditer(r"(?<= )(\S{1,2})(?= )", flat):
        near = text[max(0, operator.start() - 20): operator.end() + 20]
        texts = operator[0] == "+" and JOINS.search(near)
        if operator[0] in SWAPS and not texts:
            add(*operator.span(), SWAPS[operator[0]], "operator")
    for number in NUMBER.finditer(code):
        value, rest = int(number[1]), number[2] or ""
        for changed in (value + 1, value - 1) if value > 0 else (1,):
            add(number.start(), number.end(), f"{changed}{rest}", "constant")
    for literal in re.finditer(r"\b(true|false)\b", code):
        add(*literal.span(), "false" if literal[0] == "true" else "true", "constant")
    for branch in re.finditer(r"\b(?:if|while) (?=\()", code):
        end = closing(code, branch.end())
        start = max(branch.end() + 1, code.rfind("; ", branch.end(), end) + 2)
        condition = text[start:end]
        if re.search(r"[^=!<>]= ", code[start:end]) is None:
            add(start, end, f"!({condition})", "negated condition")
        add(start, end, "false", "condition never met")
    for statement in re.finditer(r"(?<=[;{})])(\s+)([^;{}]+);", code):
        body = statement[2]
        lone = statement[0][0] != ")" and STATEMENT.fullmatch(re.sub(r"\s+", " ", body))
        if lone and body.count("(") == body.count(")"):
            add(statement.start(2), statement.end(2), "", "removed statement")
    for call in SWAPPED.finditer(code):
        if call[1] != call[2]:
            name = call[0][: call[0].index("(")]
            add(*call.span(), f"{name}({call[2]}, {call[1]})", "swapped arguments")
    for function in re.finditer(r"\bvoid [\w:]+\([^;{}]*\)(?: const| override)* \{", code):
        add(function.end(), function.end(), " return;", "early return")
    return found
