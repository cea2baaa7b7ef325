"""The raw layout of Ali-CCP, some lines of it."""


def nested(*features):
    return "\x01".join(f"{field}\x02{feature}\x03{value}" for field, feature, value in features)


USER = [("101", 31318, 1.0), ("121", 3438658, 1.0), ("124", 3438769, 1.0), ("999", 5, 1.0)]
SHOPS = [("110_14", 100 + i, float(i)) for i in range(12)]
COMMON = [
    f"bacff91692951881,{len(USER) + 14},"
    + nested(*USER, ("109_14", 4529273, 0.69315), ("109_14", 4516977, 1.09861), *SHOPS),
    "84dceed2e3a667f8,1," + nested(("101", 7, 1.0)),
]
ITEM = [("205", 4327193, 1.0), ("206", 8316799, 1.0), ("508", 9355887, 2.48491), ("301", 9351665, 1.0)]
SKELETON = [
    "1,0,0,bacff91692951881,4," + nested(*ITEM),
    "2,1,1,84dceed2e3a667f8,3," + nested(("210", 11, 1.0), ("205", 5, 1.0), ("210", 12, 1.0)),
    "3,0,1,bacff91692951881,1," + nested(("205", 6, 1.0)),
    "4,1,0,0000000000000000,1," + nested(("205", 8, 1.0)),
]
FILES = {
    "common_features_train.csv": COMMON,
    "common_features_test.csv": COMMON[:1],
    "sample_skeleton_train.csv": SKELETON,
    "sample_skeleton_test.csv": SKELETON[:1],
}
