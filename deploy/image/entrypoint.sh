#!/bin/bash
# The entrypoint of the image. Spark starts an executor with the argument "executor", and describes it in variables;
# spark-submit in cluster mode, such as that of Spark's operator, starts the driver with the argument "driver".
# pip's package of Spark has no such script. tini passes signals on, and collects processes of Python that have ended.
set -eu
if [ "${1:-}" = driver ]; then
    exec tini -- spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "${@:2}"
fi
if [ "${1:-}" != executor ]; then
    exec tini -- "$@"
fi
options=()
while name=SPARK_JAVA_OPT_${#options[@]} && [ -n "${!name+set}" ]; do
    options+=("${!name}")
done
jars=$(python -c "import importlib.util; print(*importlib.util.find_spec('pyspark').submodule_search_locations)")/jars
exec tini -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_CONF_DIR:$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --app-id "$SPARK_APPLICATION_ID" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
