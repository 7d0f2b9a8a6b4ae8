// A provider that others wrote (npm's oidc-provider), with one client: `make openid` fetches it.
// node openid_provider.mjs FOLDER ISSUER BACK CLIENT: CLIENT is JSON, what is said of the client.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, issuer, back, client] = process.argv.slice(2);
const found = join(folder, "node_modules/oidc-provider/lib/index.js");
const { default: Provider } = await import(pathToFileURL(found));

const GROUPS = { olga: ["staff", "gpupool-operators"], rita: ["gpupool-red"] };

const provider = new Provider(issuer, {
  clients: [{ client_id: "gpupool", redirect_uris: [back], ...JSON.parse(client) }],
  claims: { openid: ["sub"], email: ["email"], groups: ["groups"] },
  cookies: { keys: ["of a test"] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@a.example`, groups: GROUPS[id] ?? [] }),
  }),
});
provider.listen(Number(new URL(issuer).port), "127.0.0.1", () => console.log("listens"));
