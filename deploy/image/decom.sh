#!/bin/bash
# Kubernetes runs it before it ends an executor, if spark.decommission.enabled is set. Spark expects it in /opt.
# The executor gets no new tasks, and ends after its running ones. Kubernetes ends it after its grace period.
kill -s PWR 1
exec sleep infinity
