"""The shapes of payment cards, IBANs, mail addresses, phone numbers and IP addresses, with their check digits.

The functions ``find_*`` count their steps, and raise ``TooMuchWorkError``.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from gateway.domain.keep_rule import RedactedKind
from gateway.formats.redaction.work import STEPS_PER_TRY, Work

Span = tuple[int, int]

_WINDOW_CHARS = 32 * 1024
"""A search is one call into C, which holds the interpreter's lock: a long text is searched in windows."""
_OVERLAP_CHARS = 128
_STEPS_PER_CANDIDATE = 4 * STEPS_PER_TRY
"""Steps of one candidate. It counts as several tries of a pattern, because check digits are computed in Python."""
_CARD = re.compile(r"[2-6](?<!\d[2-6])(?<!\d\.[2-6])(?=((?:[ -]?\d){12,18}))")
_CARD_LENGTHS = range(13, 20)
_MAX_CARD_GROUPS = 8
"""The most groups of digits that a card number has within a longer list of numbers."""
_CARD_ISSUERS = re.compile(
    r"(?:4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}"
    r"|6(?:011|5\d\d|4[4-9]\d|2\d\d)\d{12,15})\Z"
)
"""The lengths of card numbers by their issuers' digits (ISO/IEC 7812)."""
_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9][A-Z])(?=([A-Z][0-9]{2}(?: ?[A-Z0-9]){11,30}))")
_IBANS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 "
    "FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 "
    "LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 "
    "SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
)
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}
"""The lengths of IBANs by country (SWIFT's IBAN registry)."""
_IBAN_MODULUS = 97
_MAIL_LOCAL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}\Z")
_MAIL_DOMAIN = re.compile(r"@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_PHONE = re.compile(r"(?<![\w+])\+[1-9]\d{0,3}(?:[ ().-]{0,2}\d){6,12}(?!\d)")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![0-9A-Za-z:])")
_MIN_IPV6_DIGITS = 4
_MAX_DIGIT = 9
_DIGIT_STARTS = frozenset(b"0123456789\xd9\xdb\xdf\xe0\xe1\xea\xef\xf0")
"""The first bytes of the digits of all scripts in UTF-8. Letters begin with some of them, too."""
_DIGIT_CLASSES = bytes(ord("0") if code in _DIGIT_STARTS else ord(" ") for code in range(256))
_NOT_CARD_CHARS = b" -" + bytes(range(0x80, 0xC0))
"""What may stand between the digits of a card, and the bytes of UTF-8 that follow the first one."""
_CARD_CLASSES = b"0" * _CARD_LENGTHS.start
_UPPER, _DIGITS, _HEX_DIGITS = frozenset(range(65, 91)), frozenset(b"0123456789"), frozenset(b"0123456789ABCDEFabcdef")
_IBAN_CLASSES = bytes(ord("A") if code in _UPPER else ord("0") if code in _DIGITS else ord(" ") for code in range(256))
_IP_CLASSES = bytes(ord("0") if code in _HEX_DIGITS else code if code in b".:" else ord(" ") for code in range(256))
_IPV4_CLASSES = (b".0.", b".00.", b".000.")
_IPV6_CLASSES = (b"::", b":0:", b":00:", b":000:", b":0000:")


def find_cards(text: str, work: Work) -> Iterator[Span]:
    """Yield the span of each card number in ``text``. Other numbers may be beside it: ``4111 1111 1111 1111 12/29``."""
    found_to = 0
    for match in _search(_CARD, _may_have_card, text, work):
        if match.start() >= found_to:
            end = _find_card_end(text, match.start(), match.end(1))
            if end:
                yield match.start(), end
                found_to = end


def _find_card_end(text: str, start: int, stop: int) -> int:
    """Return the end of the longest card number from ``start`` on that ends with a group of digits; 0 if none."""
    is_whole = not text[stop : stop + 1].isdigit() and not (
        text[stop : stop + 1] in (" ", "-") and _is_digit(text, stop + 1)
    )
    for end in range(stop, start, -1):
        if not _is_digit(text, end - 1) or _is_digit(text, end):
            continue
        digits = text[start:end].replace(" ", "").replace("-", "")
        if len(digits) < _CARD_LENGTHS.start:
            return 0
        groups = end - start - len(digits) + 1
        is_single = is_whole and end == stop and not _is_digit(text, start - 2)
        if (groups <= _MAX_CARD_GROUPS or is_single) and is_card(digits):
            return end
    return 0


def _is_digit(text: str, position: int) -> bool:
    return position >= 0 and text[position : position + 1].isdigit()


def is_card(digits: str) -> bool:
    """Return whether ``digits`` is a card number: of an issuer's length, and with its check digit (Luhn)."""
    if _CARD_ISSUERS.match(digits) is None:
        return False
    doubled = (2 * int(digit) for digit in digits[-2::-2])
    total = sum(map(int, digits[-1::-2])) + sum(
        number - _MAX_DIGIT if number > _MAX_DIGIT else number for number in doubled
    )
    return total % 10 == 0


def find_ibans(text: str, work: Work) -> Iterator[Span]:
    """Yield the span of each IBAN in ``text`` with the right check digits (ISO 13616)."""
    found_to = 0
    for match in _search(_IBAN, _may_have_iban, text, work):
        if match.start() >= found_to:
            end = _find_iban_end(text, match.start(), match.end(1))
            if end:
                yield match.start(), end
                found_to = end


def _find_iban_end(text: str, start: int, stop: int) -> int:
    """Return the end of the IBAN that begins at ``start``; 0 if there is none, as in a country without IBANs."""
    missing, end = _IBAN_LENGTHS.get(text[start : start + 2], 0), start
    if not missing:
        return 0
    while end < stop and missing:
        missing -= text[end] != " "
        end += 1
    iban = text[start:end].replace(" ", "")
    number = "".join(str(int(char, 36)) for char in iban[4:] + iban[:4])
    return end if not missing and int(number) % _IBAN_MODULUS == 1 else 0


def find_mails(text: str, work: Work) -> Iterator[Span]:
    """Yield the span of each mail address in ``text``."""
    at = text.find("@")
    while at >= 0:
        end = at + 1
        work.add(STEPS_PER_TRY)
        domain = _MAIL_DOMAIN.match(text, at)
        local = None if domain is None else _MAIL_LOCAL.search(text, max(0, at - 64), at)
        if domain is not None and local is not None:
            yield local.start(), domain.end()
            end = domain.end()
        at = text.find("@", end)


def find_phones(text: str, work: Work) -> Iterator[Span]:
    """Yield the span of each phone number in ``text`` that begins with '+' and a country code (E.164)."""
    return (match.span() for match in _search(_PHONE, _may_have_phone, text, work))


def find_ips(text: str, work: Work) -> Iterator[Span]:
    """Yield the span of each IP address in ``text``, first those of IPv4."""
    for match in _search(_IPV4, _may_have_ipv4, text, work):
        if _is_address(IPv4Address, match[0]):
            yield match.span()
    for match in _search(_IPV6, _may_have_ipv6, text, work):
        digits = sum(char != ":" for char in match[0])
        if digits >= _MIN_IPV6_DIGITS and _is_address(IPv6Address, match[0]):  # not 12:34:56
            yield match.span()


FINDERS: dict[RedactedKind, tuple[str, Callable[[str, Work], Iterator[Span]]]] = {
    "cards": ("card", find_cards),
    "ibans": ("iban", find_ibans),
    "mails": ("mail", find_mails),
    "phones": ("phone", find_phones),
    "ips": ("ip", find_ips),
}
"""Kinds of values -> the word that replaces a value, and the function that finds the values in a text."""


def _search(
    pattern: re.Pattern[str], may_match: Callable[[bytes], bool], text: str, work: Work
) -> Iterator[re.Match[str]]:
    """Yield the matches of ``pattern``, which are at most ``_OVERLAP_CHARS`` long, in order.

    ``may_match`` says of a part of the text in UTF-8 whether the slower search makes sense.
    """
    searched_to = 0
    for start in range(0, len(text), _WINDOW_CHARS):
        window_end = start + _WINDOW_CHARS
        stop = window_end + _OVERLAP_CHARS
        if not may_match(text[start:stop].encode(errors="replace")):
            continue
        for match in pattern.finditer(text, max(start, searched_to), min(len(text), stop)):
            if match.start() >= window_end:
                break
            searched_to = match.end()
            work.add(_STEPS_PER_CANDIDATE)
            yield match


def _may_have_card(part: bytes) -> bool:
    return _CARD_CLASSES in part.translate(_DIGIT_CLASSES, _NOT_CARD_CHARS)


def _may_have_iban(part: bytes) -> bool:
    return b"AA00" in part.translate(_IBAN_CLASSES)


def _may_have_phone(part: bytes) -> bool:
    return b"+" in part


def _may_have_ipv4(part: bytes) -> bool:
    classes = part.translate(_IP_CLASSES)
    return any(group in classes for group in _IPV4_CLASSES)


def _may_have_ipv6(part: bytes) -> bool:
    classes = part.translate(_IP_CLASSES)
    return any(group in classes for group in _IPV6_CLASSES)


def _is_address(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except AddressValueError:
        return False
    return True
