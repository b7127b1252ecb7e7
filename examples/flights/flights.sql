-- Statistics of every departure from New York in 2013: of its events per hour, and of its flights per carrier.
-- run.py sets FLIGHTS_STORE and FLIGHTS_CHECKPOINT.

CREATE TABLE IF NOT EXISTS flights USING headrace OPTIONS (store = "${env:FLIGHTS_STORE}", table = "flights");
CREATE TABLE IF NOT EXISTS airlines USING headrace OPTIONS (store = "${env:FLIGHTS_STORE}", table = "airlines");
CREATE TABLE IF NOT EXISTS hourly USING headrace OPTIONS (store = "${env:FLIGHTS_STORE}", table = "hourly");

CREATE TABLE IF NOT EXISTS carriers USING headrace OPTIONS (store = "${env:FLIGHTS_STORE}", table = "carriers");

CREATE SCAN departures ON flights USING STREAM
OPTIONS (tunnel = "statistics", maxRowsPerTrigger = 200000, preImages = false);

-- A scheduled flight is an insert, its actual times are an update, and a cancellation is a delete.
-- With pre-images, the row of a delete has all columns, so it has its hour.
CREATE STREAM hourly_statistics
OPTIONS (checkpointLocation = "${env:FLIGHTS_CHECKPOINT}", outputMode = "update")
INSERT INTO hourly
SELECT date_format(window.start, "yyyy-MM-dd HH:mm") AS hour, departures.carrier AS carrier, origin,
  airlines.name AS airline,
  count_if(_change_type = 'insert') AS scheduled,
  count_if(_change_type = 'update_postimage') AS departed,
  count_if(_change_type = 'delete') AS cancelled,
  sum(CASE WHEN _change_type = 'update_postimage' THEN dep_delay END) AS dep_delay,
  sum(CASE WHEN _change_type = 'update_postimage' THEN arr_delay END) AS arr_delay,
  max(CASE WHEN _change_type = 'update_postimage' THEN dep_delay END) AS worst_dep_delay,
  sum(CASE WHEN _change_type = 'update_postimage' THEN distance END) AS distance
FROM departures JOIN airlines ON departures.carrier = airlines.carrier
WHERE delay(sched_hour) < '2 days'
GROUP BY TUMBLING(sched_hour, interval 1 hour), departures.carrier, origin, airlines.name;

-- The flights that exist: an update replaces the planned times, and a cancelled flight has no row. The tunnel begins in
-- December, so the flights before are its base data, and all updates and deletes of December are changes.
CREATE SCAN flights_now ON flights USING STREAM
OPTIONS (tunnel = "december", readAs = "table", maxRowsPerTrigger = 60000);

CREATE STREAM carrier_statistics
OPTIONS (checkpointLocation = "${env:FLIGHTS_CHECKPOINT}-carriers", outputMode = "update")
INSERT INTO carriers
SELECT flights_now.carrier AS carrier, airlines.name AS airline, count(*) AS flights, count(arr_delay) AS arrived,
  sum(dep_delay) AS dep_delay, avg(arr_delay) AS mean_arr_delay, min(dep_delay) AS best_dep_delay,
  max(dep_delay) AS worst_dep_delay, count(DISTINCT tailnum) AS planes
FROM flights_now JOIN airlines ON flights_now.carrier = airlines.carrier
GROUP BY flights_now.carrier, airlines.name;
