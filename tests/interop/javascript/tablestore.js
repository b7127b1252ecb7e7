// Tablestore's JavaScript client. Arguments: the address of the endpoint, the name of an instance.
"use strict";

const assert = require("node:assert/strict");
const TableStore = require("tablestore");
const { run } = require("./scenarios.js");

const [endpoint, instancename] = process.argv.slice(2);
const { Long, INF_MIN, INF_MAX, PK_AUTO_INCR } = TableStore;
const client = new TableStore.Client({
    accessKeyId: process.env.HEADRACE_ACCESS_KEY_ID,
    secretAccessKey: process.env.HEADRACE_ACCESS_KEY_SECRET,
    endpoint,
    instancename,
});
const ANY = new TableStore.Condition(TableStore.RowExistenceExpectation.IGNORE, null);

function call(name, params) {
    return new Promise((resolve, reject) => client[name](params, (error, data) => (error ? reject(error) : resolve(data))));
}

function table(tableName, primaryKey, maxVersions = 1) {
    return call("createTable", {
        tableMeta: { tableName, primaryKey },
        reservedThroughput: { capacityUnit: { read: 0, write: 0 } },
        tableOptions: { timeToLive: -1, maxVersions },
    });
}

function put(tableName, primaryKey, attributeColumns, returnType = TableStore.ReturnType.NONE) {
    return call("putRow", { tableName, condition: ANY, primaryKey, attributeColumns, returnContent: { returnType } });
}

function cells(row) {
    return Object.fromEntries((row.attributes || []).map((cell) => [cell.columnName, String(cell.columnValue)]));
}

run({
    async rows() {
        await table("rows", [{ name: "p", type: "STRING" }, { name: "n", type: "INTEGER" }]);
        const key = [{ p: "ключ" }, { n: Long.fromNumber(1) }];
        await put("rows", key, [{ a: "表格" }, { b: 1.5 }, { c: true }, { d: Long.fromNumber(5) }, { e: Buffer.from([0, 255]) }]);
        const found = await call("getRow", { tableName: "rows", primaryKey: key, maxVersions: 1 });
        assert.deepEqual(
            { ...cells(found.row), e: undefined },
            { a: "表格", b: "1.5", c: "true", d: "5", e: undefined },
        );
        await call("updateRow", {
            tableName: "rows",
            condition: ANY,
            primaryKey: key,
            updateOfAttributeColumns: [{ PUT: [{ a: "x" }] }, { DELETE_ALL: ["b"] }, { INCREMENT: [{ d: Long.fromNumber(2) }] }],
        });
        const after = await call("getRow", { tableName: "rows", primaryKey: key, maxVersions: 1 });
        assert.deepEqual([cells(after.row).a, cells(after.row).b, cells(after.row).d], ["x", undefined, "7"]);
        await call("deleteRow", { tableName: "rows", condition: ANY, primaryKey: key });
        assert.deepEqual((await call("getRow", { tableName: "rows", primaryKey: key, maxVersions: 1 })).row, {});
    },
    async ranges() {
        await table("ranges", [{ name: "p", type: "STRING" }, { name: "n", type: "INTEGER" }]);
        for (let number = 0; number < 5; number++) {
            await put("ranges", [{ p: "p" }, { n: Long.fromNumber(number) }], [{ v: Long.fromNumber(number) }]);
        }
        let start = [{ p: INF_MIN }, { n: INF_MIN }];
        const found = [];
        while (start) {
            const page = await call("getRange", {
                tableName: "ranges",
                direction: TableStore.Direction.FORWARD,
                maxVersions: 1,
                inclusiveStartPrimaryKey: start,
                exclusiveEndPrimaryKey: [{ p: INF_MAX }, { n: INF_MAX }],
                limit: 2,
            });
            found.push(...page.rows.map((row) => cells(row).v));
            start = page.nextStartPrimaryKey && page.nextStartPrimaryKey.map((one) => ({ [one.name]: one.value }));
        }
        assert.deepEqual(found, ["0", "1", "2", "3", "4"]);
        const back = await call("getRange", {
            tableName: "ranges",
            direction: TableStore.Direction.BACKWARD,
            maxVersions: 1,
            inclusiveStartPrimaryKey: [{ p: "p" }, { n: INF_MAX }],
            exclusiveEndPrimaryKey: [{ p: "p" }, { n: INF_MIN }],
        });
        assert.deepEqual(back.rows.map((row) => cells(row).v), ["4", "3", "2", "1", "0"]);
    },
    async numbered() {
        await table("numbered", [{ name: "p", type: "STRING" }, { name: "n", type: "INTEGER", option: "AUTO_INCREMENT" }]);
        const key = [{ p: "p" }, { n: PK_AUTO_INCR }];
        const made = await put("numbered", key, [{ v: "x" }], TableStore.ReturnType.Primarykey);
        const next = await put("numbered", key, [{ v: "y" }], TableStore.ReturnType.Primarykey);
        const [one, two] = [made, next].map((answer) => Number(answer.row.primaryKey[1].value));
        assert.ok(two > one);
    },
    async times() {
        await table("times", [{ name: "p", type: "STRING" }], 3);
        const now = Date.now();
        for (const past of [2000, 1000, 0]) {
            await put("times", [{ p: "p" }], [{ a: String(past), timestamp: now - past }, { b: "same", timestamp: now }]);
        }
        const found = await call("getRow", { tableName: "times", primaryKey: [{ p: "p" }], maxVersions: 3 });
        const stamps = found.row.attributes.map((cell) => [cell.columnName, cell.columnValue, now - Number(cell.timestamp)]);
        assert.deepEqual(stamps, [["a", "0", 0], ["b", "same", 0]]);
        await call("updateRow", {
            tableName: "times",
            condition: ANY,
            primaryKey: [{ p: "p" }],
            updateOfAttributeColumns: [{ PUT: [{ a: "1", timestamp: now - 1000 }] }, { DELETE: [{ b: Long.fromNumber(now) }] }],
        });
        const left = await call("getRow", { tableName: "times", primaryKey: [{ p: "p" }], maxVersions: 3 });
        assert.deepEqual(left.row.attributes.map((cell) => [cell.columnName, cell.columnValue]), [["a", "0"], ["a", "1"]]);
    },
    async batches() {
        await table("batches", [{ name: "p", type: "STRING" }]);
        const rows = ["a", "b", "c"].map((name) => ({
            type: "PUT",
            condition: ANY,
            primaryKey: [{ p: name }],
            attributeColumns: [{ v: name, timestamp: Date.now() }],
            returnContent: { returnType: TableStore.ReturnType.Primarykey },
        }));
        const written = await call("batchWriteRow", { tables: [{ tableName: "batches", rows }] });
        assert.ok(written.tables.every((each) => each.isOk));
        const keys = ["a", "c", "x"].map((name) => [{ p: name }]);
        const found = await call("batchGetRow", { tables: [{ tableName: "batches", primaryKey: keys }] });
        assert.deepEqual(found.tables[0].map((row) => cells(row).v), ["a", "c", undefined]);
    },
    async conditions() {
        await table("conditions", [{ name: "p", type: "STRING" }]);
        const key = [{ p: "p" }];
        await put("conditions", key, [{ v: Long.fromNumber(1) }]);
        const equal = (value) => new TableStore.SingleColumnCondition("v", Long.fromNumber(value), TableStore.ComparatorType.EQUAL);
        const update = (value) =>
            call("updateRow", {
                tableName: "conditions",
                condition: new TableStore.Condition(TableStore.RowExistenceExpectation.EXPECT_EXIST, equal(value)),
                primaryKey: key,
                updateOfAttributeColumns: [{ PUT: [{ v: Long.fromNumber(value + 1) }] }],
            });
        await update(1);
        await assert.rejects(update(1), (error) => /OTSConditionCheckFail/.test(String(error.message)));
        assert.deepEqual((await call("listTable", {})).tableNames.filter((name) => name === "conditions"), ["conditions"]);
        await call("deleteTable", { tableName: "conditions" });
    },
});
