"""Headers of columns of whole numbers, from public data sets and shops, with what their numbers are.

Words of `data.raw.clues` were chosen on one half, by a hash, and are judged on the other.
"""

from zlib import crc32

_IDS = """
visitorid|itemid|transactionid|categoryid|parentid|customer_id|article_id|product_type_no
department_no|Customer ID|InvoiceNo|aisle_id|hotel_cluster|srch_destination_id|prop_id
user_location_city|posa_continent|display_id|document_id|geo_location|publisher_id|ncodpers
cod_prov|ip|app|device|os|channel|msno|userId|movieId|imdbId|UserID|Zip-code|User-ID
MAL_ID|product_uid|household_key|BASKET_ID|STORE_ID|cate_id|adgroup_id|cms_segid|brand
sessionId|queryId|ItemID|business_id|work_id|appid|reference|agent|company|Store|Dept
Upc|FinelineNumber|VisitNumber|store_nbr|item_nbr|merchant_id|city_id|TransactionID|card1
addr1|LYLTY_CARD_NBR|TXN_ID|PROD_NBR|artistID|tagID|User ID|Customer No|visitor|member
article|Member Number|Loyalty Card No|Account Number|Kundennummer|Artikelnr|Filiale
Nutzer_ID|Kunden-Nr.|Benutzer|N° client|id_produit|magasin|utilisateur|usuario|producto
codigo_postal|tienda|cliente|C14|site|ad_slot|campaign|creative|playlist|song|track
episodeId|seller|driver_id|passenger|patient_id|employee number|listing|host_id
neighbourhood|postcode|zip code|area code|country code|branch|warehouse|supplier
vendor_code|sku|EAN|ISBN|device_model|browser_id|carrier|subscriber|player|team_id
match_id|video_id|author|newsId|shopId|Order ID|buyer|account|contentId|recipe_id
asin_idx|uid|u_id|iid|gid|Clicked Article|last_item|nextItem|previous_page|query_hash
fingerprint|FK_User|user_key|RegionCode
"""
_AMOUNTS = """
order_number|days_since_prior_order|add_to_cart_order|srch_adults_cnt|srch_children_cnt
orig_destination_distance|cnt|age|antiguedad|renta|song_length|members|episodes|Popularity
Favorites|QUANTITY|SALES_VALUE|price|Price|timeframe|review_count|num_pages|ratings_count
playtime_forever|hours|fnlwgt|education-num|capital-gain|hours-per-week|balance|duration
pdays|casual|registered|Sales|Customers|CompetitionDistance|lead_time|adults|children
stays_in_week_nights|Account Length|tenure|MonthlyCharges|Menge|Preis|Alter|Umsatz|Anzahl
montant|quantite|precio|cantidad|edad|plays|weight|PROD_QTY|TOT_SALES|Weekly_Sales
Temperature|Size|ScanCount|unit_sales|transactions|installments|purchase_amount
TransactionAmt|dist1|user_age|num_items|page_views|item_price|product_weight_g|n_users
userAge|total_clicks|views|likes|height|width|income|salary|Total Day Minutes
Number vmail messages|customer lifetime value|sqft_living|yr_built|mileage|horsepower|score
rank|dwell_time_ms|session_length|device_memory|screen_width|order_total|discount|tax|fare
bytes|latency|followers|friends_count|word_count|title_length|position|stock|floor|rooms
calories|steps|heart_rate|credit_limit|loan_amnt|annual_inc|delinq_2yrs|open_acc
Anzahl Artikel|Alter_Kunde|nombre_articles|prix_produit|precio_producto|item_cnt_day
user_reviews|shop_visits|seller_rating
"""
KINDS = {
    name: kind
    for kind, lines in (("ids", _IDS), ("amounts", _AMOUNTS))
    for line in lines.split("\n")
    for name in filter(None, line.split("|"))
}


def kinds(half):
    """The names of half 0, on which the words were chosen, or of half 1, each with its kind."""
    return {name: kind for name, kind in KINDS.items() if crc32(name.encode()) % 2 == half}
