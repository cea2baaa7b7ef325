"""The one door to storage at URLs: files by name (`files`), and copies on this machine (`copies`)."""

from hotrows.runtime.remote.copies import fetched as fetched
from hotrows.runtime.remote.copies import is_url as is_url
from hotrows.runtime.remote.copies import named as named
from hotrows.runtime.remote.copies import origin_of as origin_of
from hotrows.runtime.remote.copies import sent as sent
