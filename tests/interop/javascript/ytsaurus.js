// YTsaurus' JavaScript wrapper in its default settings, except for TLS and the token.
// Arguments: the address of the proxy, a directory.
"use strict";

const assert = require("node:assert/strict");
const yt = require("@ytsaurus/javascript-wrapper")();
const { run } = require("./scenarios.js");

const [proxy, home] = process.argv.slice(2);
yt.setup.setGlobalOption("proxy", proxy);
yt.setup.setGlobalOption("secure", false);
yt.setup.setGlobalOption("authentication", { type: "oauth", token: process.env.YT_TOKEN });

const { v3, v4 } = yt;
const TEXTS = { $value: "json", $attributes: { encode_utf8: "false" } };
const KEYED = [
    { name: "k", type: "int64", sort_order: "ascending" },
    { name: "v", type: "string" },
    { name: "d", type: "double" },
    { name: "b", type: "boolean" },
];

function lines(text) {
    return text.trim().split("\n").map((line) => JSON.parse(line));
}

async function refused(promise, part) {
    await assert.rejects(promise, (error) => JSON.stringify(error).includes(part) || assert.fail(JSON.stringify(error)));
}

run({
    async nodes() {
        assert.equal(await v3.exists({ path: `${home}/n` }), false);
        assert.match(JSON.parse(await v3.create({ path: `${home}/n`, type: "map_node" })), /^[0-9a-f-]+$/);
        assert.deepEqual(Object.keys(JSON.parse(await v4.create({ path: `${home}/n/m`, type: "map_node" }))), ["node_id"]);
        assert.deepEqual(await v4.exists({ path: `${home}/n` }), { value: true });
        assert.deepEqual(await v3.list({ path: `${home}/n`, attributes: ["type"] }), [
            { $value: "m", $attributes: { type: "map_node" } },
        ]);
        assert.deepEqual(await v4.get({ path: `${home}/n` }), { value: { m: {} } });
        await v3.copy({ source_path: `${home}/n`, destination_path: `${home}/copied` });
        await v4.move({ source_path: `${home}/copied`, destination_path: `${home}/moved` });
        await v3.link({ target_path: `${home}/moved`, link_path: `${home}/link` });
        assert.equal(await v3.get({ path: `${home}/link/m/@key` }), "m");
        await v4.remove({ path: `${home}/moved`, recursive: "true" });
        await refused(v3.get({ path: `${home}/moved` }), "has no child");
    },
    async attributes() {
        await v3.create({ path: `${home}/a`, type: "map_node" });
        await v3.set({ path: `${home}/a/@name`, input_format: TEXTS }, { word: "жук", $$n: 1 });
        const found = await v3.get({ path: `${home}/a/@name`, output_format: TEXTS });
        assert.deepEqual(found, { word: "жук", $$n: 1 });
        // The default has one character for each byte.
        const bytes = await v3.get({ path: `${home}/a/@name/word` });
        assert.equal(Buffer.from(bytes, "latin1").toString(), "жук");
        await v4.set({ path: `${home}/a/@long` }, "x".repeat(70000));
        const cut = { $value: "json", $attributes: { string_length_limit: 3 } };
        assert.deepEqual((await v4.get({ path: `${home}/a/@long`, output_format: cut })).value, {
            $incomplete: true,
            $value: "xxx",
        });
    },
    async flags() {
        const schema = { $value: [{ name: "a", type: "int64", required: "false" }], $attributes: { strict: "false" } };
        await v4.create({ path: `${home}/s`, type: "table", attributes: { dynamic: "false", schema } });
        assert.equal(await v3.get({ path: `${home}/s/@dynamic` }), false);
        const known = await v3.get({ path: `${home}/s/@schema` });
        assert.equal(known.$attributes.strict, false);
        assert.equal(known.$value[0].required, false);
        await v3.create({ path: `${home}/q`, type: "table", attributes: { dynamic: "true", schema: KEYED } });
        assert.equal(await v3.get({ path: `${home}/q/@dynamic` }), true);
        await refused(v3.create({ path: `${home}/x`, type: "table", attributes: { dynamic: "no", schema: KEYED } }), "dynamic");
    },
    async rows() {
        await v3.create({ path: `${home}/t`, type: "table", attributes: { dynamic: true, schema: KEYED } });
        await v3.mountTable({ path: `${home}/t` });
        await v3.insertRows({
            parameters: { path: `${home}/t` },
            data: [
                { k: { $type: "int64", $value: "1" }, v: "one", d: { $type: "double", $value: "1.5" }, b: true },
                { k: 2, v: null, d: 2.0, b: { $type: "boolean", $value: "false" } },
            ],
        });
        assert.deepEqual(lines(await v4.selectRows({ query: `* from [${home}/t]` })), [
            {
                k: { $type: "int64", $value: "1" },
                v: { $type: "string", $value: "one" },
                d: { $type: "double", $value: "1.5" },
                b: { $type: "boolean", $value: "true" },
            },
            { k: { $type: "int64", $value: "2" }, v: null, d: { $type: "double", $value: "2" }, b: { $type: "boolean", $value: "false" } },
        ]);
        await v3.unmountTable({ path: `${home}/t` });
        await refused(v3.selectRows({ query: `* from [${home}/t]` }), "it is unmounted");
    },
    async tables() {
        await v4.create({ path: `${home}/w`, type: "table" });
        await v4.writeTable({ parameters: { path: `${home}/w` }, data: [{ a: 1, b: "x" }, { a: 2 }] });
        assert.deepEqual(lines(await v4.readTable({ parameters: { path: `${home}/w[#1:]` } })), [{ a: 2 }]);
        await v3.create({ path: `${home}/f`, type: "file" });
        assert.equal(await v3.readFile({ path: `${home}/f` }), "");
    },
    async transactions() {
        const id = await v3.startTransaction({ timeout: 30000 });
        await v3.set({ path: `${home}/@in`, transaction_id: id }, 1);
        assert.equal(await v3.exists({ path: `${home}/@in` }), false);
        await v3.pingTransaction({ transaction_id: id });
        await v3.commitTransaction({ transaction_id: id });
        assert.equal(await v3.get({ path: `${home}/@in` }), 1);
    },
    async batches() {
        const requests = [
            { command: "exists", parameters: { path: home } },
            { command: "get", parameters: { path: `${home}/nothing` } },
            { command: "set", parameters: { path: `${home}/@batch` }, input: 5 },
        ];
        const [first, second, third] = await v3.executeBatch({ requests });
        assert.deepEqual([first, second.error.code, third], [{ output: true }, 500, {}]);
        const { results } = await v4.executeBatch({ requests });
        assert.deepEqual(results[0], { output: { value: true } });
    },
});
