// Opens each built page in a real browser, light and dark, 375 and 1440 pixels wide. It fails
// on console errors, failed or external requests, and pages wider than the screen.
import { createServer } from 'node:http'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { extname, join } from 'node:path'
import puppeteer from 'puppeteer-core'

const dist = new URL('./dist/', import.meta.url).pathname
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.png': 'image/png',
  '.json': 'application/json', '.woff2': 'font/woff2' }
const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, 'http://site').pathname)
  const file = [path, path + '.html', join(path, 'index.html')].map((p) => join(dist, p)).find((p) => extname(p) && existsSync(p))
  if (!file) return response.writeHead(path === '/favicon.ico' ? 204 : 404).end()
  response.writeHead(200, { 'Content-Type': types[extname(file)] ?? 'application/octet-stream' }).end(readFileSync(file))
})
await new Promise((listening) => server.listen(0, '127.0.0.1', listening))
const origin = `http://127.0.0.1:${server.address().port}`

const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'].find((p) => existsSync(p))
if (!executablePath) throw new Error('no chromium or google-chrome')
const browser = await puppeteer.launch({ executablePath, args: ['--no-sandbox'] })
const faults = []
const pages = readdirSync(dist, { recursive: true }).filter((f) => f.endsWith('.html') && f !== '404.html').sort()
for (const scheme of ['light', 'dark'])
  for (const width of [375, 1440]) {
    const page = await browser.newPage()
    await page.setViewport({ width, height: 900 })
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }])
    let where = ''
    const fault = (text) => faults.push(`${where} (${scheme}, ${width} px): ${text}`)
    page.on('console', (m) => m.type() === 'error' && fault(m.text()))
    page.on('pageerror', (e) => fault(e.message))
    page.on('request', (r) => r.url().startsWith('http') && !r.url().startsWith(origin) && fault('asks for ' + r.url()))
    page.on('response', (r) => r.status() >= 400 && fault(`${r.status()} for ${r.url()}`))
    for (where of pages) {
      await page.goto(`${origin}/${where.replace(/(index)?\.html$/, '')}`, { waitUntil: 'networkidle0' })
      const [content, dark] = await page.evaluate(() => [document.documentElement.scrollWidth,
        document.documentElement.classList.contains('dark')])
      if (content > width) fault(`is ${content} px wide`)
      if (dark !== (scheme === 'dark')) fault('does not follow the color scheme')
    }
    await page.close()
  }
await browser.close()
server.close()
for (const text of faults) console.error(text)
console.log(`${pages.length} pages, 4 layouts, ${faults.length} faults`)
process.exit(faults.length > 0 ? 1 : 0)
