"""The raw layout of Taobao's display ads, some lines of it."""

from hotrows.data.datasets import tables


def seconds_at(date, hour=12):
    """Unix time of an hour of a day in China."""
    return tables.day(date) * 86_400 + (hour - 8) * 3600


SHOWN = seconds_at("2017-05-10")
FILES = {
    "raw_sample.csv": [
        "user,time_stamp,adgroup_id,pid,nonclk,clk",
        f"581738,{SHOWN},1,430548_1007,1,0",
        f"581738,{seconds_at('2017-05-13', 1)},2,430539_1007,0,1",
        f"9,{seconds_at('2017-05-12', 23)},1,430548_1007,1,0",
        f"581738,{seconds_at('2017-05-12', 0)},7,430548_1007,1,0",
    ],
    "ad_feature.csv": [
        "adgroup_id,cate_id,campaign_id,customer,brand,price",
        "1,6406,83237,11,95471,170.0",
        "2,392,83238,12,NULL,99999999.0",
    ],
    "user_profile.csv": [
        "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,"
        "occupation,new_user_class_level ",
        "581738,0,5,2,5,,3,0,3",
    ],
    "behavior_log.csv": [
        "user,time_stamp,btag,cate,brand",
        f"581738,{SHOWN - 10},cart,5,50",
        f"581738,{SHOWN - 20},pv,6,60",
        f"581738,{SHOWN},buy,7,70",
        f"581738,{SHOWN + 5},pv,8,NULL",
        f"777,{SHOWN - 1},pv,9,90",
    ],
}
