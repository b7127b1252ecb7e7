-- SQL reads headrace's rows through the pipeline's tables and views: SQL has no place for the options of a format.
CREATE MATERIALIZED VIEW current_orders AS
SELECT id, last.user, last.price FROM (
  SELECT id, max_by(struct(_change_type, user, price), _commit_version) AS last
  FROM order_changes WHERE _change_type <> 'update_preimage' GROUP BY id
)
WHERE last._change_type <> 'delete';

CREATE MATERIALIZED VIEW totals_per_city AS
SELECT city, count(*) AS orders, sum(price) AS spent
FROM current_orders JOIN users USING (user) GROUP BY city;
