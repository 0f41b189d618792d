// The page's files have the same names in every build, because the binary embeds them, and test.sh
// compares the build with the committed files.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    outDir: process.env["DASHBOARD_OUT"] ?? "../crates/manage/admin/ui",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "app.js",
        assetFileNames: "app[extname]",
      },
    },
  },
});
