"""Tags and placeholders of texts: taken out before the translation, and put back around the words they belong to."""

import dataclasses
import functools
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keras_transformer_serving.text.alignment import AlignedText
from keras_transformer_serving.text.placement import Element, ElementPlace, Placement

TAG_HANDLING = ("html", "placeholders")
MAX_DEPTH = 100
"""The maximum number of elements inside one another."""

_BLOCKS = re.compile(
    "address|article|aside|base|blockquote|body|br|button|canvas|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|"
    "dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hgroup|hr|html|iframe|legend|li|link|main|"
    "map|menu|meta|nav|noframes|noscript|object|ol|optgroup|option|p|pre|script|section|select|style|summary|table|tbody|"
    "td|template|textarea|tfoot|th|thead|title|tr|ul|video|audio"
)
_VOID = re.compile("area|base|br|col|embed|frame|hr|img|input|link|meta|param|source|track|wbr")
# Elements whose end tags, and some of whose start tags, HTML allows to omit: they are not paired.
_OPTIONAL = re.compile(
    "body|caption|colgroup|dd|dt|head|html|li|optgroup|option|p|rb|rp|rt|rtc|tbody|td|tfoot|th|thead|tr"
)
_RAW = ("script", "style", "textarea")
_TAG = re.compile(
    r"<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*+)(?P<attributes>(?:\"[^\"]*+\"|'[^']*+'|[^'\">])*+)>"
)
_NOT_TRANSLATED = re.compile(
    r"""(?<![\w-])translate\s*=\s*["']?no\b|(?<![\w-])class\s*=\s*(?:["'](?:[^"']*\s)?|)notranslate(?=[\s"'>]|$)""",
    re.IGNORECASE,
)
_SELF_CLOSING = re.compile(r"(?:^|[\s\"'])/$")
_MARKUP = re.compile(r"<(?=[A-Za-z!?]|/[A-Za-z])")
# The ends of comments, CDATA sections, processing instructions and declarations.
_OTHERS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": ">", "<!": ">"}
_BRACES = "[^{}]"
for _ in range(3):
    _BRACES = rf"(?:[^{{}}]|\{{{_BRACES}{{0,1000}}+\}})"
_FLAGS = r"[-+0#']{0,5}(?:\d{1,9}|\*(?:\d{1,9}\$)?)?(?:\.(?:\d{1,9}|\*))?"
_FORMAT = rf"{_FLAGS}(?:hh?|ll?|L)?[sdifuxXeEgGcroaA@]"
_WORD = r"[A-Za-z_][0-9A-Za-z_\u00c0-\u024f]{0,99}"  # not of other scripts, such as in "%sさん"
_PERCENT_NAME = r"%[A-Za-z_][\w.-]{1,99}%(?![\w%])"
_ICU = "(?:plural|select|selectordinal|choice|number|date|time|spellout|ordinal|duration)"
_FIELD = r"\{[^{}<>\s]{0,100}\}"
_URL = rf"(?:[^\s<>\"'{{}}()\u3000-\u9fff\uff00-\uffef]|\([^\s<>\"'()]{{0,200}}\)|\{{{_FIELD}\}}|{_FIELD})"
# Of patterns that match at one place, the first is chosen.
_PRESETS = {
    # {{name}}, {{{name}}}, {% if x %}, {# comment #}
    "jinja": r"\{{2,4}(?:[^{}\n]|\{[^{}\n]{0,100}\}){1,200}\}{2,4}|\{%[^\n]{1,200}?%\}|\{#[^\n]{1,200}?#\}",
    # {name}, {n, plural, one {# item} other {# items}}
    "icu": rf"\{{\s*[\w.-]{{1,100}}\s*(?:,\s*{_ICU}\s*(?:,{_BRACES}{{0,1000}}+)?)?\}}",
    # {name}, {0}, {:.2f}, {when:%d %B}, {0,10:N2}, %(name)s
    "python": r"\{[\w.\[\]'\"-]{0,100}=?(?:,-?\d{1,5})?(?:![rsa])?"
    rf"(?::(?:[^{{}}\s]|\{{\w{{0,50}}\}}){{0,50}}|:[^{{}}%\n]{{0,50}}%[A-Za-z][^{{}}\n]{{0,50}})?\}}|%\([^()\n]{{1,100}}\){_FORMAT}",
    # %{name}, %<name>s
    "rails": rf"%\{{[^{{}}\n]{{1,100}}\}}|%[-+0]{{0,3}}<\w{{1,100}}>{_FORMAT}",
    # $name, $user.name, $NAME$, $t(key), ${name}, #{name}, %name%, __NAME__
    "variables": rf"(?<![\w%]){_PERCENT_NAME}|[$#]\{{[^{{}}\n]{{1,100}}\}}|"
    rf"(?<![\w$])\$(?:t\([^()\n]{{1,200}}\)|{_WORD}(?:(?:(?:\.|->){_WORD}){{1,5}}|\$(?!\w))?)"
    r"|(?<!\w)__[A-Z](?:[A-Z0-9]|_(?!_)){0,99}__(?!\w)",
    # %s, %1$s, %.2f, %%, and with what follows, as in %username and %dpx; not 20 %de
    "printf": rf"%%|(?<!\d)(?<!\d[ \u00a0])(?!{_PERCENT_NAME})"
    rf"%(?:\d{{1,9}}\$)?(?:#@\w{{1,100}}@|{_FLAGS}(?:{_WORD}|@))",
    # https://example.com/a?b, name@example.com
    "url": rf"(?:\b[A-Za-z][A-Za-z\d+.-]{{0,30}}://|\b(?i:www)\.)(?:[^\W_][\w-]{{0,62}}\.){{0,8}}{_URL}{{1,2000}}"
    r"(?<![.,;:!?…\]])"
    r"|(?:\b(?i:mailto):)?(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
    r"|\b(?i:tel):\+?\d[\d.-]{1,30}(?<![.-])",
    # :name
    "colon": r"(?<![\w:/]):[A-Za-z_]\w{0,99}",
    # @name
    "at": r"(?<![\w.@])@[A-Za-z_]\w{0,99}",
}
PLACEHOLDERS = (*_PRESETS,)
"""The names of the kinds of placeholders."""
DEFAULT_PLACEHOLDERS = PLACEHOLDERS[:-2]
"""The kinds that are kept by default."""
Placeholders = Iterable[str | re.Pattern[str]]
_SPACES = re.compile(r"[ \t\n\r\f]+")
_LINE_BREAKS = re.compile(r"([ \t]*[\r\n]\s*)")
_CLOSING = ".,;:!?…)]}»”’、。，！？：；"


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """A text without its tags, and the elements in it.

    Attributes:
        text: the text.
        elements: the elements, in their order.
        escapes: whether `&`, `<` and `>` are written as entities.
    """

    text: str
    elements: Sequence[Element]
    escapes: bool

    def places(self) -> Iterator[int]:
        """Yield the places of the tags."""
        remaining = [*self.elements]
        while remaining:
            element = remaining.pop()
            yield element.start
            yield element.end
            remaining += element.elements

    def with_tags(self, translation: AlignedText) -> str:
        """Return a translation with the tags around the words that translate those in the elements."""
        placement = Placement(self.text, translation)
        written: list[str] = []
        place = 0

        def copy(end: int) -> None:
            nonlocal place
            text = translation.text[place:end]
            written.append(html.escape(text, quote=False) if self.escapes else text)
            place = max(place, end)

        def write(elements: Sequence[Element], around: Element | None, span: ElementPlace | None) -> None:
            for inner in placement.of_siblings(elements, around, span):
                element = elements[inner.number]
                copy(inner.start)
                written.extend((inner.space_before, element.opening))
                write(element.elements, element, inner)
                copy(inner.end)
                written.extend((element.closing, inner.space_after))

        write(self.elements, None, None)
        copy(len(translation.text))
        return "".join(written)


def parse(
    text: str, tag_handling: str, placeholders: Placeholders | None = None
) -> tuple[list[Segment], list[str]]:
    """Split a text at its block elements into segments.

    Args:
        text: the text.
        tag_handling: "html" for HTML and XML tags and placeholders, or "placeholders" for these only.
        placeholders: the kinds of placeholders, names in `PLACEHOLDERS`, or compiled patterns; by default
            `DEFAULT_PLACEHOLDERS`.

    Returns:
        P segments, and P + 1 strings before, between and after them, which are not translated: tags of block elements,
        comments, scripts.

    Raises:
        ValueError: if a tag is not closed, elements are not nested, or a kind of placeholders is unknown.

    Example:
        >>> (segment,), between = parse("<p>The <b>red</b> house</p>", "html")
        >>> segment.text, between
        ('The red house', ['<p>', '</p>'])
    """
    check_tag_handling(tag_handling)
    is_html = tag_handling == "html"
    patterns = patterns_of(placeholders)
    tokens = _paired(_tokens(text, patterns)) if is_html else [*_with_placeholders(text, patterns)]
    segments: list[Segment] = []
    between: list[list[str]] = [[]]
    for is_break, group in itertools.groupby(tokens, lambda token: token.role == "break"):
        of_group = [*group]
        segment = None if is_break else _segment(of_group, is_html)
        if segment is None:
            between[-1] += [token.source for token in of_group]
            continue
        before, segment_, after = segment
        between[-1].append(before)
        segments.append(segment_)
        between.append([after])
    return segments, ["".join(strings) for strings in between]


def check_tag_handling(tag_handling: str) -> None:
    """Raise a ValueError unless the setting is known."""
    if tag_handling not in TAG_HANDLING:
        raise ValueError(
            f"`tag_handling` must be one of {TAG_HANDLING}. Received: tag_handling={tag_handling!r}"
        )


def patterns_of(placeholders: Placeholders | None) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of kinds of placeholders, those of own ones first."""
    given: Any = DEFAULT_PLACEHOLDERS if placeholders is None else placeholders
    listed = [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    own = [kind for kind in listed if isinstance(kind, re.Pattern) and isinstance(kind.pattern, str)]
    if any(kind not in own and kind not in PLACEHOLDERS for kind in listed):
        raise ValueError(
            f"`placeholders` must be a list of names in {PLACEHOLDERS} or patterns of `re.compile`. "
            f"Received: placeholders={placeholders!r}"
        )
    return (*own, *_patterns_of_names(tuple(name for name in PLACEHOLDERS if name in listed)))


@functools.cache
def _patterns_of_names(names: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return one pattern for all names; none without names."""
    return (re.compile("|".join(_PRESETS[name] for name in names)),) if names else ()


class _Matches:
    """The matches of patterns in a text, from one place after the other."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], text: str) -> None:
        self._patterns, self._text = patterns, text
        self._next: list[re.Match[str] | None] = [self._search(pattern, 0) for pattern in patterns]

    def after(self, place: int) -> re.Match[str] | None:
        """Return the first match from a place on, which must not be before that of the last call."""
        for index, (pattern, match) in enumerate(zip(self._patterns, self._next, strict=True)):
            if match is not None and match.start() < place:
                self._next[index] = self._search(pattern, place)
        return min(filter(None, self._next), key=lambda match: match.start(), default=None)

    def _search(self, pattern: re.Pattern[str], place: int) -> re.Match[str] | None:
        match = pattern.search(self._text, place)
        while match is not None and not match[0]:
            place = match.end() + 1
            match = pattern.search(self._text, place) if place <= len(self._text) else None
        return match


@dataclasses.dataclass(eq=False)
class _Token:
    """A string of a marked text.

    Attributes:
        source: the string.
        role: "text", "tag" of an element with words, "empty" for a tag or placeholder without, or "break" for all that
            separates segments.
        name: of a tag, the name of the element in lower case.
        side: "start" or "end" of a tag that has a counterpart.
        keeps: whether the element is not translated.
    """

    source: str
    role: str
    name: str = ""
    side: str = ""
    keeps: bool = False

    @property
    def is_block(self) -> bool:
        """True if the element is a block."""
        return _BLOCKS.fullmatch(self.name) is not None or self.has_optional_tags

    @property
    def has_optional_tags(self) -> bool:
        """True if the tags of the element may be omitted."""
        return _OPTIONAL.fullmatch(self.name) is not None


def _tokens(text: str, patterns: Sequence[re.Pattern[str]]) -> Iterator[_Token]:
    """Yield the tags, and the texts and placeholders between them, of HTML."""
    tags, placeholders = _Matches([_MARKUP], text), _Matches(patterns, text)
    place, depth = 0, 0  # of <pre>
    while place < len(text):
        tag, placeholder = tags.after(place), placeholders.after(place)
        start = tag.start() if tag else len(text)
        if placeholder and placeholder.start() < start:
            start = placeholder.start()
        if start > place:
            strings = _LINE_BREAKS.split(text[place:start]) if depth > 0 else [text[place:start]]
            roles = itertools.cycle(("text", "break"))
            yield from (_Token(string, role) for string, role in zip(strings, roles, strict=False) if string)
            place = start
            continue
        if placeholder and placeholder.start() == start:
            yield _Token(placeholder[0], "empty")
            place = placeholder.end()
            continue
        token = _tag(text, start)
        yield token
        place = start + len(token.source)
        depth += (token.name == "pre") * {"start": 1, "end": -1}.get(token.side, 0)
        if token.name in _RAW and token.side == "start":
            end = re.compile(rf"</{token.name}(?=[\s/>])", re.IGNORECASE).search(text, place)
            if end is None:
                raise _not_closed(token.source, start)
            if end.start() > place:
                yield _Token(text[place : end.start()], "break")
            place = end.start()


def _tag(text: str, start: int) -> _Token:
    """Return the tag, comment or declaration at a place."""
    for opening, closing in _OTHERS.items():
        if text.startswith(opening, start):
            end = text.find(closing, start + len(opening))
            if end < 0:
                raise ValueError(
                    f"`texts` must have {closing!r} after {opening!r}. Received: none after character {start}"
                )
            source = text[start : end + len(closing)]
            return _Token(source, "break" if opening == "<!" else "empty")
    match = _TAG.match(text, start)
    if match is None:
        raise ValueError(
            "`texts` must have '>' at the end of each tag; a character '<' before a letter is written as '&lt;'. "
            f"Received: {text[start : start + 40]!r} at character {start}"
        )
    name = match["name"].lower()
    if not match["slash"] and (_VOID.fullmatch(name) or _SELF_CLOSING.search(match["attributes"])):
        return _Token(match[0], "break" if _BLOCKS.fullmatch(name) else "empty", name)
    if match["slash"]:
        return _Token(match[0], "tag", name, "end")
    return _Token(match[0], "tag", name, "start", bool(_NOT_TRANSLATED.search(match["attributes"])))


def _with_placeholders(text: str, patterns: Sequence[re.Pattern[str]]) -> Iterator[_Token]:
    """Yield the placeholders of a text without tags, and the texts between them."""
    place, matches = 0, _Matches(patterns, text)
    while match := matches.after(place):
        if match.start() > place:
            yield _Token(text[place : match.start()], "text")
        yield _Token(match[0], "empty")
        place = match.end()
    if place < len(text):
        yield _Token(text[place:], "text")


def _paired(tokens: Iterator[_Token]) -> list[_Token]:
    """Return the tokens with each start tag paired with an end tag in the same segment.

    Elements that contain a break separate segments themselves. Elements without words, and those that are not
    translated, become one token.
    """
    found: list[_Token] = []
    opened: list[int] = []  # indices of start tags
    place = 0
    for token in tokens:
        found.append(token)
        if token.side == "end" and opened and found[opened[-1]].name == token.name:
            _close(found, opened.pop())
        elif token.side == "end" and not token.has_optional_tags:
            inner = found[opened[-1]].source if opened else "no element"
            raise ValueError(
                "`texts` must have end tags in the reverse order of their start tags. "
                f"Received: {token.source[:40]} at character {place}, in {inner[:40]}"
            )
        elif token.side and token.is_block:
            token.role = "break"
        if found[-1].role == "break":
            _separate(found, opened)
        if token.side == "start" and (token.keeps or not token.has_optional_tags):
            opened.append(len(found) - 1)
            if len(opened) > MAX_DEPTH:
                raise ValueError(
                    f"`texts` must have at most {MAX_DEPTH} elements inside one another. "
                    f"Received: more at character {place}"
                )
        place += len(token.source)
    if opened:
        raise _not_closed(found[opened[-1]].source, sum(len(token.source) for token in found[: opened[-1]]))
    return found


def _separate(found: list[_Token], opened: Sequence[int]) -> None:
    """Let the elements that are open separate segments, as the last token does."""
    for index in reversed(opened):
        if found[index].role == "break":
            return  # and so do those around it
        found[index].role = "break"


def _close(found: list[_Token], index: int) -> None:
    """Pair the last token, an end tag, with the start tag at an index."""
    opening, closing = found[index], found[-1]
    is_empty = all(
        token.role == "empty" or (token.role == "text" and token.source.isspace())
        for token in found[index + 1 : -1]
    )
    if opening.keeps or (opening.role == "tag" and is_empty):
        source = "".join(token.source for token in found[index:])
        found[index:] = [_Token(source, "break" if opening.is_block else "empty")]
    elif opening.role == "break":
        closing.role = "break"


def _not_closed(tag: str, place: int) -> ValueError:
    return ValueError(
        f"`texts` must have an end tag for each start tag. Received: none for {tag[:40]} at character {place}"
    )


def _segment(tokens: Sequence[_Token], is_html: bool) -> tuple[str, Segment, str] | None:
    """Return the spaces before a segment, the segment and the spaces after it; None without letters."""
    builder = _Builder()
    for token in tokens:
        if token.role == "text":
            text = _SPACES.sub(" ", html.unescape(token.source)) if is_html else token.source
            builder.add_text(text)
        elif token.role == "empty":
            builder.add_empty(token.source)
        elif token.side == "start":
            builder.open(token.source)
        else:
            builder.close(token.source)
    return builder.segment(is_html)


class _Builder:
    """The text and the elements of a segment."""

    def __init__(self) -> None:
        self._strings: list[str] = []
        self._length = 0
        self._last = ""  # the last character of the text
        self._boundary = -1  # the place of the last start or end tag
        self._elements: list[list[Element]] = [[]]
        self._opened: list[Element] = []
        self._waiting: list[Element] = []  # empty elements after the last character

    def add_text(self, text: str) -> None:
        """Add a text, after the space beside an empty element was taken out."""
        for element in self._waiting:
            text = self._take_space(element, text)
        self._waiting.clear()
        if text:
            self._strings.append(text)
            self._length += len(text)
            self._last = text[-1]

    def add_empty(self, source: str) -> None:
        """Add an element without words."""
        element = Element(self._length, self._length, source)
        self._elements[-1].append(element)
        self._waiting.append(element)

    def open(self, source: str) -> None:
        """Add a start tag."""
        element = Element(self._length, self._length, source)
        self._elements[-1].append(element)
        self._opened.append(element)
        self._elements.append(element.elements)
        self._boundary = self._length

    def close(self, source: str) -> None:
        """Add an end tag."""
        element = self._opened.pop()
        self._elements.pop()
        element.end, element.closing = self._length, source
        self._boundary = self._length

    def segment(self, escapes: bool) -> tuple[str, Segment, str] | None:
        """Return the spaces before the segment, the segment and the spaces after it; None without letters."""
        self.add_text("")
        text = "".join(self._strings)
        if not any(map(str.isalpha, text)):
            return None
        core = text.strip()
        start = len(text) - len(text.lstrip())
        remaining = [*self._elements[0]]
        while remaining:
            element = remaining.pop()
            element.start, element.end = (
                min(max(place - start, 0), len(core)) for place in (element.start, element.end)
            )
            remaining += element.elements
        before, _, after = text.partition(core)
        return before, Segment(core, self._elements[0], escapes), after

    def _take_space(self, element: Element, following: str) -> str:
        """Take out one of two spaces around an empty element, or the one before punctuation; return the next text."""
        is_before_space = following[:1].isspace()
        is_last = is_before_space or not following or following[0] in _CLOSING
        if self._last == " " and is_last and self._boundary < self._length:
            self._strings[-1] = self._strings[-1][:-1]
            self._length -= 1
            self._last = self._last_character()
            element.spaced = True
            for other in self._waiting:
                other.start = other.end = self._length
        elif self._last in ("", " ") and is_before_space:
            element.spaced = True
            return following[1:]
        return following

    def _last_character(self) -> str:
        return next((string[-1] for string in reversed(self._strings) if string), "")
