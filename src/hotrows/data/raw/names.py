"""What the name of a column says: ids, an amount, a time, a label, a user, a history.

A name is read as words, however they are joined: `User ID`, `userId` and `user_id` are alike. In most
names the last word is what is meant, `user_age`; in `Alter_Kunde` and `nombre_articles` it is the first.
The words were chosen on 129 names of public data sets; of 148 others (tests/data/header_names.py), 130
are right, two wrong, and 16 say nothing.
"""

from __future__ import annotations

import re
import unicodedata

TIME_NAME = re.compile(r"time|date|created|(^|_)(ts|day|when|at|dt|hour)($|_)|[a-z]At$", re.IGNORECASE)
HISTORY_NAME = re.compile(r"hist|seq|clicked|viewed|bought|recent|last|prev", re.IGNORECASE)
_GROUPS = ("user", "u", "member", "customer", "visitor", "session", "client", "kunde", "usuario")
GROUPS = {*_GROUPS, *(f"{group}id" for group in _GROUPS)} - {"u"}  # within which metrics are computed
LABELS = (
    *("label", "labels", "target", "y", "click", "clicked", "clicks", "conversion", "converted"),
    *("attributed", "purchase", "purchased", "bought", "buy", "install", "installed", "like", "liked"),
    *("response", "outcome", "churn", "churned", "subscribed", "class", "income"),
)
RATINGS = ("rating", "ratings", "stars", "score")
_IDS = """
id ids uid iid gid pid cid sid uuid guid code codigo fingerprint ean isbn upc sku zip zipcode postcode
plz group band class bucket segment cluster slot type
"""
_OF_IDS = """
user visitor member customer client buyer subscriber player account person employee guest patient driver
host seller vendor merchant supplier shop store branch site page url domain app device os browser ip
session query keyword item product article movie film song track album artist book author publisher news
video show game team match recipe listing ad advertiser campaign creative banner placement channel
source category cat cate brand genre tag topic city region country state location geo continent province
prov department dept warehouse carrier model card addr address order transaction invoice basket
household hotel destination document doc shipper company agent kunde kunden nutzer benutzer besucher
mitglied artikel produkt filiale haendler handler marke kategorie stadt utilisateur visiteur produit
magasin marque ville categorie usuario cliente visitante producto articulo tienda marca ciudad utente
prodotto negozio produto loja
"""
_OF_AMOUNTS = """
price cost amount amt value val qty quantity age count cnt total sum avg mean sale revenue income salary
balance duration length size weight height width depth distance dist volume rate ratio score rating rank
position pos day hour minute second month week year yr ms sec km cm mm kg g usd eur pct percent tenure
discount tax fee fare tip stock inventory level temperature temp humidity speed mileage sqft byte
latency memory limit credit debit payment budget bid population power horsepower gain loss points inc
floor preis menge anzahl alter umsatz dauer gewicht betrag rabatt kosten gehalt bewertung prix montant
quantite duree nombre poids taille salaire cout remise solde precio cantidad edad monto importe peso
duracion saldo descuento sueldo ingreso preco quantidade idade valor prezzo quantita
"""
_KEYS, _ENTITIES, _AMOUNTS = (frozenset(words.split()) for words in (_IDS, _OF_IDS, _OF_AMOUNTS))
_NUMBERS = ("no", "nr", "nbr", "number", "nummer", "numero", "key", "hash", "idx")  # of what, before it
_COUNTED = ("n", "num", "nb", "number", "total", "sum", "avg", "mean", "max", "min")  # before it
_RELATIONS = ("of", "per", "since", "until", "de", "pro", "par")  # behind what is meant
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NO_ID = re.compile(r".*(paid|bid|valid|grid|acid|covid|solid|liquid|fluid|android|hybrid|rapid|kid|aid)")


def words_of(name: str) -> list[str]:
    """The words of a name in lower case, without accents.

    >>> words_of("Kunden-Nr."), words_of("lastItemID")
    (['kunden', 'nr'], ['last', 'item', 'id'])
    """
    letters = unicodedata.normalize("NFKD", name.replace("°", "o"))
    return [word.lower() for word in _WORD.findall(re.sub("[\u0300-\u036f]", "", letters))]


def plain(name: str) -> str:
    """A name without `is_`, signs and digits, as in the lists of labels."""
    return re.sub(r"^(is|has|did)_|[^a-z]", "", name.strip().lower())


def meaning(name: str) -> str:
    """What the whole numbers of a column are by its name: "ids", "amounts", or "" where it does not say.

    >>> meaning("Customer No"), meaning("user_age"), meaning("num_users"), meaning("x")
    ('ids', 'amounts', 'amounts', '')
    """
    words = words_of(name)
    for relation in _RELATIONS:
        if relation in words[1:]:
            words = words[: words.index(relation, 1)]
    if not words:
        return ""
    first, last = words[0], words[-1]
    if len(words) > 1 and first in _COUNTED and (first != "n" or _is_plural(last)):
        return "amounts"
    if _is_key(last) or (len(words) > 1 and (last in _NUMBERS or first in ("no", "nr", "id"))):
        return "ids"
    for word in (last, first):
        if word in _AMOUNTS or word.removesuffix("s") in _AMOUNTS:
            return "amounts"
    if _is_plural(last):
        return "amounts"
    return "ids" if not _ENTITIES.isdisjoint(words) else ""


def _is_key(word: str) -> bool:
    is_joined = len(word) > 3 and word.endswith(("id", "nummer", "nr")) and not _NO_ID.fullmatch(word)
    return word in _KEYS or is_joined


def _is_plural(word: str) -> bool:
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
