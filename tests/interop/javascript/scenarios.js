// Runs scenarios one after the other, and prints a line for each: "name: ok", or its error.
"use strict";

async function run(scenarios) {
    let failed = false;
    for (const [name, scenario] of Object.entries(scenarios)) {
        try {
            await scenario();
            console.log(`${name}: ok`);
        } catch (error) {
            failed = true;
            const text = error instanceof Error ? error.stack : JSON.stringify(error);
            console.log(`${name}: ${text.replaceAll("\n", " ")}`);
        }
    }
    process.exit(failed ? 1 : 0);
}

module.exports = { run };
