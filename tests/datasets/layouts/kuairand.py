"""The raw layout of KuaiRand, some lines of it."""

LOG = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,"
    "long_view,play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)
USERS = (
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,follow_user_num,"
    "follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,friend_user_num_range,"
    "register_days,register_days_range," + ",".join(f"onehot_feat{i}" for i in range(18))
)
VIDEOS = (
    "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,server_width,"
    "server_height,music_id,music_type,tag"
)


def event(user, video, date, time, click, like=0):
    return f"{user},{video},{date},400,{time},{click},{like},0,0,0,0,1,151024,104400,0,0,0,0,1"


FILES = {
    "log_standard_4_08_to_4_21_pure.csv": [
        LOG,
        event(3, 100, 20220408, 1649347200000, 1),
        event(3, 200, 20220408, 1649347200000, 0),
        event(3, 300, 20220409, 1649433600000, 0, 1),
    ],
    "log_standard_4_22_to_5_08_pure.csv": [
        LOG,
        event(3, 200, 20220507, 1651852800000, 1),
        event(3, 999, 20220508, 1651939200000, 1),
        event(4, 100, 20220508, 1651939200000, 0),
    ],
    "log_random_4_22_to_5_08_pure.csv": [LOG, event(3, 300, 20220501, 1651400000000, 1)],
    "user_features_pure.csv": [
        USERS,
        '3,full_active,0,0,1,5,"(0,10]",312,"[100,1k)",0,0,3624,730+,'
        + ",".join(str(i) for i in range(17))
        + ",",
    ],
    "video_features_basic_pure.csv": [
        VIDEOS,
        '100,441,NORMAL,2020-07-08,ShortImport,1,17200.0,720,1280,989206467,4,"12,65"',
        "200,442,AD,2020-07-09,,1,,720,1280,,,",
        "300,441,NORMAL,2020-07-08,ShortImport,1,17200.0,720,1280,989206467,4,8",
    ],
}
