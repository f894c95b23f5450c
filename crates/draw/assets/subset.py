"""Reduces Inter to the characters of the viewer.

Usage: python3 subset.py DIRECTORY_OF_INTER_OTF_FILES
"""

import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

TEXT = "".join(map(chr, range(0x20, 0x7F))) + "·×→←↑↓…µ–—−±≤≥≈²°’‘“”•▲▼◆□÷∞✓"

for weight in ("Regular", "SemiBold"):
    font = TTFont(Path(sys.argv[1]) / f"Inter-{weight}.otf")
    table = font["GSUB"].table
    tabular = {}
    for record in table.FeatureList.FeatureRecord:
        if record.FeatureTag == "tnum":
            for lookup in record.Feature.LookupListIndex:
                for part in table.LookupList.Lookup[lookup].SubTable:
                    tabular.update(getattr(part, "ExtSubTable", part).mapping)
    for cmap in font["cmap"].tables:
        if cmap.isUnicode():
            for code, glyph in list(cmap.cmap.items()):
                if chr(code).isdigit():
                    cmap.cmap[code] = tabular.get(glyph, glyph)
    options = subset.Options()
    # Canvas pictures do not kern, and the table is a third of the file.
    options.layout_features = []
    options.hinting = False
    options.name_IDs = [0, 14]
    options.drop_tables += ["GDEF", "GPOS", "GSUB"]
    options.desubroutinize = True
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=TEXT)
    subsetter.subset(font)
    font.save(Path(__file__).parent / f"Inter-{weight}.subset.otf")
