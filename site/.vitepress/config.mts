import { readdirSync, readFileSync } from 'node:fs'
import { dirname, posix, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const site = resolve(dirname(fileURLToPath(import.meta.url)), '..')
const docs = resolve(site, '../docs')
const repository = 'https://github.com/stampedeguard/stampede/blob/main/'

// The first heading of each page is its name in the sidebar.
const title = (file: string) => readFileSync(resolve(docs, file), 'utf8').match(/^# (.*)$/m)?.[1] ?? file
const item = (file: string) => ({ text: title(file), link: '/' + file.replace(/\.md$/, '') })
const pages = (folder: string) =>
  readdirSync(resolve(docs, folder)).filter((f) => f.endsWith('.md') && f !== 'README.md').sort().map((f) => posix.join(folder, f))

const guides = ['recipes', 'get', 'stale', 'errors', 'many', 'tags', 'near', 'outages', 'http-server', 'http-client', 'budgets', 'lock',
  'observability', 'testing', 'operations', 'coming-from', 'questions'].map((name) => `guide/${name}.md`)

export default defineConfig({
  title: 'stampede',
  description: 'A read-through cache on Redis in which one caller of the fleet fetches',
  srcDir: '../docs',
  // The pages lie outside of this folder: their imports are resolved from here.
  vite: {
    resolve: {
      alias: [
        { find: /^vue\/server-renderer$/, replacement: resolve(site, 'node_modules/vue/server-renderer/index.mjs') },
        { find: /^vue$/, replacement: resolve(site, 'node_modules/vue/dist/vue.runtime.esm-bundler.js') },
      ],
    },
  },
  outDir: './dist',
  cacheDir: './.cache',
  cleanUrls: true,
  rewrites: { 'README.md': 'index.md', 'guide/README.md': 'guide/index.md' },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    nav: [{ text: 'Source', link: 'https://github.com/stampedeguard/stampede' }],
    sidebar: [
      { text: 'Guides', items: guides.filter((g) => pages('guide').includes(g)).map(item) },
      { text: 'Reference', items: pages('.').map(item) },
    ],
  },
  markdown: {
    // Links to source files lead to the repository: the site has the pages only.
    config(md) {
      md.core.ruler.push('source-links', (state) => {
        const page = posix.dirname(state.env.relativePath)
        for (const block of state.tokens)
          for (const token of block.children ?? []) {
            if (token.type !== 'link_open') continue
            const href = token.attrGet('href') ?? ''
            if (/^([a-z]+:|#|\/)/.test(href)) continue
            const target = posix.join('docs', page, href)
            if (!target.startsWith('docs/') || (!/\.(md|svg|png)(#|$)/.test(target) && !target.includes('#')))
              token.attrSet('href', repository + target)
          }
      })
    },
  },
})
